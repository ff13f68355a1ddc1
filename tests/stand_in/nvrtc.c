// An NVRTC that is the real one but for what it is given to compile: in the functor of an epilogue stands a type that nobody has
// declared. Linked to the real library, in which all other functions are found.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Create(void** program, const char* source, const char* name, int count,
                   const char* const* headers, const char* const* names);

int nvrtcCreateProgram(void** program, const char* source, const char* name, int count,
                       const char* const* headers, const char* const* names) {
  static const char functor[] = "struct Epilogue {", broken[] = " undeclared_type nothing;";
  Create* create = (Create*)dlsym(RTLD_NEXT, "nvrtcCreateProgram");
  const char* at = strstr(source, functor);
  if (at == NULL) return create(program, source, name, count, headers, names);
  at += sizeof functor - 1;
  size_t size = strlen(source) + sizeof broken;
  char* text = malloc(size);
  snprintf(text, size, "%.*s%s%s", (int)(at - source), source, broken, at);
  int result = create(program, text, name, count, headers, names);
  free(text);
  return result;
}
