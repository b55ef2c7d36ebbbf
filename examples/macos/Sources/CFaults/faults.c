#include "CFaults.h"

__attribute__((noinline)) int total_of(const struct order *order)
{
    return order->total;
}

__attribute__((noinline)) long sum_up_to(long number)
{
    volatile char page[4096];
    page[0] = (char)number;
    return number == 0 ? page[0] : number + sum_up_to(number - 1);
}
