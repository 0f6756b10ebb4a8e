/* clones.h: compiles a function for several levels of x86-64 and marks loops for vectors. */
#pragma once

/* Hot loops are compiled for several levels of x86-64, and the loader selects one. Sanitizers do
 * not support this mechanism (ifunc), and other machines do not need it: their baseline has
 * vectors. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(HY_NO_CLONES)
#if __GNUC__ >= 12
#define HY_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define HY_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#endif
#else
#define HY_CLONES
#endif

/* Before a loop in which each iteration accesses only its own elements: pointers may be equal, not
 * shifted. HY_SIMD_SUM allows the compiler to sum in lanes. */
#define HY_PRAGMA(text) _Pragma(#text)
#define HY_SIMD HY_PRAGMA(omp simd)
#define HY_SIMD_SUM(...) HY_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define HY_SIMD_MAX(...) HY_PRAGMA(omp simd reduction(max : __VA_ARGS__))
