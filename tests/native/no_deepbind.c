// libcupti opens libnvperf_host.so with RTLD_DEEPBIND, and AddressSanitizer ends the process when
// it sees that flag. Preloaded in front of it, this takes the flag off; for `make sanitize` only.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

void *dlopen(const char *path, int flags) {
  static void *(*next)(const char *, int) = NULL;
  if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
  return next(path, flags & ~RTLD_DEEPBIND);
}
