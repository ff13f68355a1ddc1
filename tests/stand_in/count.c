// Counts the instructions that a program executes between two breakpoints (`int3`), by
// single-stepping it with ptrace(2). The count is exact and reproducible, and needs neither
// hardware counters nor a profiler.
//
//   count PROGRAM ARGUMENTS...    prints the count of each pair of breakpoints, one per line
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

// Runs both processes on one CPU while instructions are counted: a switch between two CPUs at each
// instruction takes several times as long.
static void share_cpu(pid_t child, int shared) {
  static cpu_set_t all;
  if (shared) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_getaffinity(0, sizeof all, &all);
    sched_setaffinity(0, sizeof one, &one);
    sched_setaffinity(child, sizeof one, &one);
  } else {
    sched_setaffinity(0, sizeof all, &all);
    sched_setaffinity(child, sizeof all, &all);
  }
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execvp(argv[1], argv + 1);
    _exit(127);
  }
  int status, counting = 0, pass_on = 0;
  long count = 0;
  waitpid(child, &status, 0);  // stopped at exec
  while (1) {
    if (ptrace(counting ? PTRACE_SINGLESTEP : PTRACE_CONT, child, 0, pass_on) != 0) return 3;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    if (WIFSIGNALED(status)) return 4;
    siginfo_t info;
    ptrace(PTRACE_GETSIGINFO, child, 0, &info);
    pass_on = 0;
    // A breakpoint comes from the kernel as SI_KERNEL, a step as TRAP_TRACE.
    if (WSTOPSIG(status) == SIGTRAP && info.si_code == SI_KERNEL) {
      if (counting) printf("%ld\n", count);
      counting = !counting;
      share_cpu(child, counting);
      count = 0;
    } else if (WSTOPSIG(status) == SIGTRAP) {
      ++count;
    } else {
      pass_on = WSTOPSIG(status);
    }
  }
}
