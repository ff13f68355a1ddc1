// A choice in which the index is a constant to the compiler, as a register's name in PTX has to be.
#pragma once

template <int VALUE> struct Constant { static constexpr int value = VALUE; };

// body(Constant<index>), for an index from FIRST to before END. Branches halve what is left: of many in a row, the compiler would make
// instructions of all choices, each of which a predicate skips.
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
