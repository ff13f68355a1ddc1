// Asserts that a field lies where the host writes it.
#pragma once

// NVRTC has no offsetof; __INTADDR__ is the intrinsic from which its front end (EDG) builds it.
#define RUTLASS_FIELD(STRUCT, FIELD, BYTES)                                     \
  static_assert((unsigned long long)__INTADDR__(&((STRUCT*)0)->FIELD) == BYTES, \
                "host and kernel disagree")
