#error "the host backend has no tensor cores: keep wmma code inside #ifdef __CUDACC__, or build for a GPU"
