// CUDA names that this backend does not have. Using one ends the compilation on the line where it stands;
// labkit/host_refused.py explains why and what to do. A name inside #ifdef __CUDA_ARCH__ or
// __CUDACC__ is never seen here. Any other CUDA name that is missing is an undeclared identifier, which ends
// the compilation just as well.
#pragma once

// Kernels stand in the .cu file or in a header beside it, whose text is transformed; other headers are not.
#pragma GCC poison __global__
#pragma GCC poison asm __managed__ __cluster_dims__ __block_size__ __trap __brkpt __nanosleep clock64
#pragma GCC poison globaltimer
#pragma GCC poison cudaMalloc cudaMallocAsync cudaMallocHost cudaMallocManaged cudaMallocPitch cudaHostAlloc
#pragma GCC poison cudaFree
#pragma GCC poison cudaFreeAsync cudaFreeHost cudaMemcpy cudaMemcpyAsync cudaMemcpy2D cudaMemcpy2DAsync
#pragma GCC poison cudaMemcpyToSymbol cudaMemcpyToSymbolAsync cudaMemcpyFromSymbol cudaMemcpyFromSymbolAsync
#pragma GCC poison cudaGetSymbolAddress cudaGetSymbolSize
#pragma GCC poison cudaStreamCreate cudaStreamCreateWithFlags cudaStreamDestroy cudaStreamWaitEvent
#pragma GCC poison cudaStreamPerThread
#pragma GCC poison cudaEventCreate cudaEventCreateWithFlags cudaEventRecord cudaEventSynchronize
#pragma GCC poison cudaEventElapsedTime
#pragma GCC poison cudaLaunchKernel cudaLaunchKernelEx cudaLaunchKernelExC cudaLaunchCooperativeKernel
#pragma GCC poison cudaGraphLaunch cudaStreamBeginCapture cudaStreamEndCapture
#pragma GCC poison cudaOccupancyMaxPotentialBlockSize cudaGetDeviceProperties cudaDeviceProp
#pragma GCC poison cudaTextureObject_t cudaSurfaceObject_t tex1D tex2D tex3D tex1Dfetch surf2Dread surf2Dwrite
#pragma GCC poison __shfl __shfl_up __shfl_down __shfl_xor __ballot __any __all
