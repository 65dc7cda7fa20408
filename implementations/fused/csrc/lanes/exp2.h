// 2^x by splitting x = n + r, r in [0, 1]: a polynomial for 2^r, the exponent field for 2^n.
//
// The polynomial is minimax in relative error (8.2e-8; with rounding 1.4e-7) under the constraint
// p(0) = 1: 2^0 must be exactly 1, or factors that should change nothing drift with the number of
// key blocks. NaN stays NaN, -inf gives 0, results under 2^-126 are flushed to 0.

FUSED_INLINE Vec exp2_fraction(Vec r) {
  Vec y = broadcast(1.867131478e-3f);
  y = y * r + 9.01702466e-3f;
  y = y * r + 5.579992042e-2f;
  y = y * r + 2.401644466e-1f;
  y = y * r + 6.931513124e-1f;
  return y * r + 1.0f;
}

FUSED_INLINE Vec exp2(Vec x) {
#if FUSED_LANES == 16
  constexpr int kFractionAboveFloor = 1;
  const Vec r = (Vec)_mm512_reduce_ps((__m512)x, kFractionAboveFloor);
  return (Vec)_mm512_scalef_ps((__m512)exp2_fraction(r), (__m512)x);
#else
  const Vec lowest = broadcast(-126.5f);  // n = -127, whose exponent field makes the result 0
  x = x < lowest ? lowest : x;  // in this order NaN passes
  // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits of the mantissa.
  const float shifter = 12582912.0f;
  const Vec shifted = (x - 0.5f) + shifter;
  const Vec r = x - (shifted - shifter);
  const IntVec n = (IntVec)shifted - 0x4B400000;
  return exp2_fraction(r) * (Vec)((n + 127) << 23);
#endif
}
