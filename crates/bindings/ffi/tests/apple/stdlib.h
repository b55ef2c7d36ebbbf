// What `coroner.h` includes and does not use.
