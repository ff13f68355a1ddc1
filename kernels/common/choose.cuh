// Dispatches a run-time index to code that needs the index as a compile-time constant, as the names
// of PTX registers do.
#pragma once

template <int VALUE> struct Constant { static constexpr int value = VALUE; };

// Calls body(Constant<index>) for FIRST <= index < END. Bisects: a linear chain of comparisons
// would be compiled to the predicated instructions of all cases.
template <int FIRST, int END, class Body>
__device__ __forceinline__ void choose(int index, const Body& body) {
  if constexpr (END - FIRST > 1) {
    constexpr int MIDDLE = (FIRST + END) / 2;
    if (index < MIDDLE)
      choose<FIRST, MIDDLE>(index, body);
    else
      choose<MIDDLE, END>(index, body);
  } else {
    body(Constant<FIRST>{});
  }
}
