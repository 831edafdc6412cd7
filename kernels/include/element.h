// The element types as a number, for interfaces between the files that nvcc compiles and those that it does not.
#pragma once

enum class Element { half, bfloat16, float32, float64 };
