#include <distributed/share.hpp>

#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <string>

namespace trainer::distributed {

Share share_of(int64_t batch_size, int64_t micro_batch_size, int rank, int ranks) {
  if (batch_size % ranks != 0) {
    int64_t fewer = std::min<int64_t>(ranks, batch_size);
    while (batch_size % fewer != 0) --fewer;
    const int64_t above = (batch_size / ranks + 1) * ranks, below = batch_size / ranks * ranks;
    throw Error(ExitCode::bad_recipe,
                "train.batch_size = " + std::to_string(batch_size) + " cannot be shared out evenly among " +
                    std::to_string(ranks) + " ranks: set it to " +
                    (below > 0 ? std::to_string(below) + " or " : std::string()) + std::to_string(above) +
                    ", or start " + std::to_string(fewer) + (fewer == 1 ? " rank" : " ranks"));
  }
  const int64_t samples = batch_size / ranks;
  int64_t micro = std::min(micro_batch_size, samples);
  while (samples % micro != 0) --micro;
  return {micro, samples / micro, rank * (samples / micro), batch_size / micro};
}

}  // namespace trainer::distributed
