#error "the host backend has no cooperative groups: use __syncthreads, __syncwarp, __shfl_*_sync"
