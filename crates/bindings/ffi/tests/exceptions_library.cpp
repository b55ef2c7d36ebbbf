// A shared library whose frames are between the throw and main. Built by exceptions.rs without
// frame pointers.

extern "C" __attribute__((noinline)) int library_calls(int (*function)(int), int argument)
{
    volatile char frame[200];
    frame[0] = 1;
    // Prevents a tail call, so that the frame still exists after the call.
    return function(argument) + frame[0];
}
