// Counts what a test program allocates.
#pragma once

#include <cstddef>

// Since the program began, of all threads.
std::size_t allocated();
