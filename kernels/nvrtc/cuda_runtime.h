// NVRTC brings the device side of this header by itself, and the types that launchers name.
