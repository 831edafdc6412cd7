#error "the host backend has no cooperative groups: use __syncthreads, __syncwarp and the __shfl_*_sync functions"
