// Stores a block of shared memory to an output of any strides and alignment.
#pragma once

// Stores ROWS x COLUMNS elements, one at a time, those of row < `rows` and column < `columns`. The
// lanes of a warp take adjacent columns. `out`: of row 0, column 0. Strides are in elements.
// `thread`: of THREADS. `read(row, column)`: an element.
//
// A thread reads AT_ONCE elements before it stores them: the compiler assumes that a store may
// change what a later load reads, and would let each load wait for the store before.
template <int ROWS, int COLUMNS, int THREADS, int AT_ONCE, class Out, class Read>
__device__ __forceinline__ void store_singly(Out* out, long long row_stride,
                                             long long column_stride, int rows, int columns,
                                             int thread, Read read) {
  constexpr int ACROSS = COLUMNS < THREADS ? COLUMNS : THREADS, DOWN = THREADS / ACROSS;
  constexpr int COUNT = ROWS / DOWN, BATCH = COUNT < AT_ONCE ? COUNT : AT_ONCE;
  static_assert(ROWS % DOWN == 0 && COUNT % BATCH == 0);
  const int first = thread / ACROSS;
  if (first >= DOWN) return;  // threads that make no whole row
  const long long step = row_stride * DOWN;
#pragma unroll 1
  for (int column = thread % ACROSS; column < min(COLUMNS, columns); column += ACROSS) {
    Out* target = out + row_stride * first + column_stride * column;
#pragma unroll 1
    for (int row = 0; row < ROWS; row += BATCH * DOWN) {
      Out elements[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) elements[i] = read(row + i * DOWN + first, column);
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        if (row + i * DOWN + first < rows) *target = elements[i];
        target += step;
      }
    }
  }
}
