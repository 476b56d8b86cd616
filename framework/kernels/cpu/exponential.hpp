/// @file e^x in vectors. Included by the kernels of this folder alone.
#pragma once

#include <kernels/cpu/pack.hpp>

#include <cmath>

namespace trainer::kernels {
namespace {

/// e^x, to about one unit in the last place; of what would overflow or vanish, a number that is as good in a sigmoid
/// or in a sum with e^0. Not a number where x is none is up to the caller.
TRAINER_INLINE Floats exponential(Floats x) {
  x = larger(smaller(x, all<Floats>(88.0F)), all<Floats>(-87.0F));
  // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer.
  constexpr float kRound = 12582912.0F;
  const Floats n = (x * 1.44269504F + kRound) - kRound;
  const Floats r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  // After Cephes' expf.
  Floats p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const Integers power = (convert<Integers>(n) + 127) << 23;
  return p * bits_as<Floats>(power);
}
TRAINER_INLINE Doubles exponential(Doubles x) {
  double each[kLanesOf<Doubles>];
  raw_store(each, x);
  for (double& one : each) one = std::exp(one);
  return raw_load<Doubles>(each);
}

}  // namespace
}  // namespace trainer::kernels
