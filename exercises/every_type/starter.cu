// The cube, y = x^3, for all element types: those of 16 bits are computed in float and rounded once, double in double.
//
//   v1  one element a thread; the element type is a template parameter, chosen when the operator is called
#include "copy.h"
#include "launch.cuh"

constexpr int THREADS = 256;

// Your code here.

// ---------------------------------------------------------------------------------------------------
// The launch. Returns nullptr where all is well, or what went wrong, which the binding raises as an error in Python.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (n == 0) return nullptr;
    const char* error = "there is no kernel yet for this element type";
    const int64_t blocks = divide_up(n, THREADS);
    // Your code here.
    return error;
}
