/// @file Tests that take long have a quick form, a share in which every choice is met; the whole form, in the suite
/// "whole", is the same program with this variable.
#pragma once

#include <cstdlib>

namespace trainer::testing {

inline bool whole() { return std::getenv("TRAINER_TEST_WHOLE") != nullptr; }

}  // namespace trainer::testing
