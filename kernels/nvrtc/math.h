// NVRTC knows this header's functions without it.
