/* Threads that outlive Python.
 *
 * A thread that asks for Python's lock while the interpreter ends is ended by `pthread_exit` up to Python 3.13. That
 * unwinds the C++ frames below it, and where one of them must not throw the process aborts: autograd's thread of a
 * device, still dropping its last node, turned a finished run into a failed one. Python 3.14 lets such a thread hang
 * until the process is gone, for this reason (github.com/python/cpython/issues/87135); so do we for the older ones.
 */
#include "phantom.h"

#include <dlfcn.h>
#include <unistd.h>

typedef int (*question)(void);

static bool is_python_ending(void) {
  question asked = (question)dlsym(RTLD_DEFAULT, "Py_IsFinalizing"); /* since Python 3.13 */
  if (!asked) asked = (question)dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  return asked && asked();
}

API void pthread_exit(void *value) {
  while (is_python_ending()) pause();
  void (*end)(void *) __attribute__((noreturn)) = dlsym(RTLD_NEXT, "pthread_exit");
  end(value);
}
