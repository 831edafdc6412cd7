// The limits of a launch, and the sizes of what one runs on. Part of cuda_host.h.
#pragma once

#include <stddef.h>

namespace cuda_host {

constexpr unsigned max_threads = 1024;
constexpr unsigned warp_size = 32;
constexpr size_t max_shared = 232448;        // 227 KiB: what a block may have after cudaFuncSetAttribute
constexpr size_t max_static_shared = 49152;  // 48 KiB: what it may have without
constexpr size_t stack_bytes = 128 * 1024;   // of one thread: its local variables
constexpr size_t page_bytes = 4096;          // of memory, on most machines
constexpr size_t watched_bytes = 64;         // past the end of each shared array
constexpr size_t shared_alignment = 256;     // of each shared array
constexpr unsigned most_shared_arrays = 64;  // of a block
// Room for all of them, each with its watched bytes and its alignment.
constexpr size_t shared_capacity = max_shared + most_shared_arrays * (watched_bytes + 2 * shared_alignment);
constexpr size_t band_bytes = 1024;          // at the low end of each stack: whoever writes there needs more
constexpr unsigned char band_value = 0x5a;

}  // namespace cuda_host
