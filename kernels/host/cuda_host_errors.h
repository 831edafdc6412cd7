// cudaError_t: CUDA's numbers and words, and the last error of each OS thread. Part of cuda_host.h.
#pragma once

enum cudaError : int {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevice = 101,
    cudaErrorAssert = 710,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
};
typedef cudaError cudaError_t;

namespace cuda_host {

constexpr int message_bytes = 1024;

inline constinit thread_local cudaError_t last_error = cudaSuccess;
// CUDA's words for a failed launch, followed by what this backend saw. Outlives the error, as it is asked for
// later.
inline constinit thread_local char failure[message_bytes] = "";

}  // namespace cuda_host

// Returns the last error of this OS thread and forgets it.
inline cudaError_t cudaGetLastError() {
    cudaError_t error = cuda_host::last_error;
    cuda_host::last_error = cudaSuccess;
    return error;
}

// Returns the last error of this OS thread and keeps it.
inline cudaError_t cudaPeekAtLastError() { return cuda_host::last_error; }

inline const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorAssert: return "cudaErrorAssert";
        case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
    }
    return "unrecognized error code";
}

inline const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorAssert:
            return cuda_host::failure[0] == 'd' ? cuda_host::failure : "device-side assert triggered";
        case cudaErrorLaunchFailure:
            return cuda_host::failure[0] == 'u' ? cuda_host::failure : "unspecified launch failure";
        case cudaErrorNotSupported:
            return "operation not supported: the answer depends on registers, which the host backend does not count; "
                   "ask on a GPU";
    }
    return "unrecognized error code";
}
