// NVRTC brings the device side of this header by itself. What launchers name is declared here, so that a .cu file that
// holds kernels and launchers can be read; it is never called, since NVRTC compiles no host code.
#pragma once

using cudaStream_t = struct CUstream_st*;
enum cudaError_t : int;
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
