// SPDX-License-Identifier: Apache-2.0
// GRADCOMP_MULTIVERSION in front of a function compiles it for plain x86-64, AVX2 and AVX-512; the
// dynamic loader picks one for the machine. Elsewhere it is empty.
//
// All variants give the same bits: the code uses integers and single IEEE operations only, and
// contraction to fused multiply-add is off. A lambda inside such a function is NOT covered, and
// neither is a function it calls unless that is inlined: keep the loops in the function itself.
//
// Define GRADCOMP_NO_MULTIVERSION to build the plain variant alone, or GRADCOMP_MULTIVERSION itself
// to build another one alone, as tests do.

#ifndef GRADCOMP_CORE_MULTIVERSION_H_
#define GRADCOMP_CORE_MULTIVERSION_H_

#if !defined(GRADCOMP_MULTIVERSION) && defined(__x86_64__) && defined(__linux__) && \
    defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) &&             \
    !defined(GRADCOMP_NO_MULTIVERSION)
#if __GNUC__ >= 12
#define GRADCOMP_MULTIVERSION \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif
#endif

#ifndef GRADCOMP_MULTIVERSION
#define GRADCOMP_MULTIVERSION
#endif

// For the small pieces of a multiversion function: they must be inlined to be vectorised with it.
#if defined(__GNUC__)
#define GRADCOMP_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define GRADCOMP_ALWAYS_INLINE inline
#endif

#endif  // GRADCOMP_CORE_MULTIVERSION_H_
