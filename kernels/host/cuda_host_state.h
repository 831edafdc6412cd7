// What the parts of the host backend know of a launch. Part of cuda_host.h.
#pragma once

#include <string.h>

namespace cuda_host {

// A statement in a .cu file.
struct Site {
    const char* file;
    int line;
    bool operator==(const Site& other) const { return line == other.line && strcmp(file, other.file) == 0; }
    const char* name() const {
        const char* slash = strrchr(file, '/');
        return slash ? slash + 1 : file;
    }
};

struct Launch;
class Block;

// What threadIdx and its companions read, and the block that this OS thread runs (null outside a kernel).
struct Here {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    Block* scheduler;
};
inline constinit thread_local Here here{};
inline Block& block_here();  // the running block

// One kernel (of a template: one instance).
struct KernelInfo {
    const char* name;
    int launch_bound;           // threads a block, from __launch_bounds__; 0: none given
    size_t max_dynamic_shared;  // bytes, from cudaFuncSetAttribute; 0: never called
};

struct Launch {
    KernelInfo& kernel;
    dim3 grid, block;
    size_t dynamic_shared;
    void (*thread_main)(const void* body);
    const void* body;
    Schedule order;
    unsigned long long next_block = 0;
    int failed = 0;  // 1 once a block has failed; the first one writes the two below
    cudaError_t error = cudaSuccess;
    char message[message_bytes] = "";
};

enum class WarpOp : unsigned char {
    sync, shuffle, shuffle_up, shuffle_down, shuffle_xor, ballot, all, any, match_any, match_all,
};

}  // namespace cuda_host
