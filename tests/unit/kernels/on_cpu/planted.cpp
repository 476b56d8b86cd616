#include "planted.hpp"

#include <cstdlib>

namespace on_cpu {

bool planted(int number) {
  static const char* const chosen = std::getenv("TRAINER_PLANTED");
  static const int on = chosen == nullptr ? 0 : std::atoi(chosen);
  return number == on;
}

}  // namespace on_cpu
