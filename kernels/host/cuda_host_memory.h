// Atomics and loads and stores with cache hints. Part of cuda_host.h.
//
// Blocks run in parallel on several OS threads, so atomics are real ones, relaxed as CUDA's are. Each exists
// for exactly the types that CUDA has it for.
#pragma once

namespace cuda_host {

// Replaces *address by f(*address) atomically, whatever its type of 2, 4 or 8 bytes. Returns the old value.
template <class Word, class T, class F>
inline T update(T* address, F f) {
    static_assert(sizeof(Word) == sizeof(T));
    if constexpr (tracing) trace::atomic(address, sizeof(T));
    Word* word = reinterpret_cast<Word*>(address);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED), desired;
    T value;
    do {
        memcpy(static_cast<void*>(&value), &old, sizeof old);
        T changed = f(value);
        memcpy(&desired, &changed, sizeof old);
    } while (!__atomic_compare_exchange_n(word, &old, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return value;
}

}  // namespace cuda_host

#define CUDA_HOST_ATOMIC(name, builtin, T) \
    inline T name(T* address, T value) {                        \
        if constexpr (::cuda_host::tracing) ::cuda_host::trace::atomic(address, sizeof(T)); \
        return builtin(address, value, __ATOMIC_RELAXED);       \
    }
#define CUDA_HOST_ATOMIC_BY_CAS(name, T, Word, expression)                                     \
    inline T name(T* address, T value) {                                                       \
        return ::cuda_host::update<Word>(address, [value](T old) -> T { return expression; }); \
    }
#define CUDA_HOST_INTEGER_ATOMICS(T)                                                                      \
    CUDA_HOST_ATOMIC(atomicAnd, __atomic_fetch_and, T)                                                    \
    CUDA_HOST_ATOMIC(atomicOr, __atomic_fetch_or, T)                                                      \
    CUDA_HOST_ATOMIC(atomicXor, __atomic_fetch_xor, T)                                                    \
    CUDA_HOST_ATOMIC(atomicExch, __atomic_exchange_n, T)                                                  \
    CUDA_HOST_ATOMIC_BY_CAS(atomicMin, T, T, value < old ? value : old)                                   \
    CUDA_HOST_ATOMIC_BY_CAS(atomicMax, T, T, value > old ? value : old)                                   \
    CUDA_HOST_ATOMIC(atomicAdd, __atomic_fetch_add, T)                                                    \
    inline T atomicCAS(T* address, T compare, T value) {                                                  \
        if constexpr (::cuda_host::tracing) ::cuda_host::trace::atomic(address, sizeof(T));               \
        __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
        return compare;                                                                                   \
    }
CUDA_HOST_INTEGER_ATOMICS(int)
CUDA_HOST_INTEGER_ATOMICS(unsigned)
CUDA_HOST_INTEGER_ATOMICS(unsigned long long)
CUDA_HOST_ATOMIC(atomicSub, __atomic_fetch_sub, int)
CUDA_HOST_ATOMIC(atomicSub, __atomic_fetch_sub, unsigned)
CUDA_HOST_ATOMIC(atomicAnd, __atomic_fetch_and, long long)
CUDA_HOST_ATOMIC(atomicOr, __atomic_fetch_or, long long)
CUDA_HOST_ATOMIC(atomicXor, __atomic_fetch_xor, long long)
CUDA_HOST_ATOMIC_BY_CAS(atomicMin, long long, long long, value < old ? value : old)
CUDA_HOST_ATOMIC_BY_CAS(atomicMax, long long, long long, value > old ? value : old)
CUDA_HOST_ATOMIC_BY_CAS(atomicInc, unsigned, unsigned, old >= value ? 0 : old + 1)
CUDA_HOST_ATOMIC_BY_CAS(atomicDec, unsigned, unsigned, old == 0 || old > value ? value : old - 1)
CUDA_HOST_ATOMIC_BY_CAS(atomicAdd, float, unsigned, old + value)
CUDA_HOST_ATOMIC_BY_CAS(atomicAdd, double, unsigned long long, old + value)
CUDA_HOST_ATOMIC_BY_CAS(atomicExch, float, unsigned, (static_cast<void>(old), value))
inline unsigned short atomicCAS(unsigned short* address, unsigned short compare, unsigned short value) {
    if constexpr (::cuda_host::tracing) ::cuda_host::trace::atomic(address, sizeof *address);
    __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
#undef CUDA_HOST_ATOMIC
#undef CUDA_HOST_INTEGER_ATOMICS

// Loads and stores with a cache hint: plain ones here.
template <class T>
inline T __ldg(const T* address) {
    return *address;
}
template <class T>
inline T __ldca(const T* address) {
    return *address;
}
template <class T>
inline T __ldcg(const T* address) {
    return *address;
}
template <class T>
inline T __ldcs(const T* address) {
    return *address;
}
template <class T>
inline T __ldcv(const T* address) {
    return *address;
}
template <class T>
inline T __ldlu(const T* address) {
    return *address;
}
template <class T, class V>
inline void __stwb(T* address, V value) {
    *address = value;
}
template <class T, class V>
inline void __stcg(T* address, V value) {
    *address = value;
}
template <class T, class V>
inline void __stcs(T* address, V value) {
    *address = value;
}
template <class T, class V>
inline void __stwt(T* address, V value) {
    *address = value;
}
