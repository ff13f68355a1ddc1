// A wrapper of NVRTC that breaks epilogues: it inserts an undeclared type into the functor before
// it passes the program on. All other functions come from the real library, to which it is linked.
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
