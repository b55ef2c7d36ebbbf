/* The parts of the app that are in C, and Coroner for the Swift code that imports this module. */
#ifndef CFAULTS_H
#define CFAULTS_H

#include "coroner_apple.h"

struct order {
    int number;
    int total;
};

/* The total of an order: nobody checks that there is one. */
int total_of(const struct order *order);

/* The sum of the first numbers, by as many calls. */
long sum_up_to(long number);

#endif
