#include "buffers.hpp"

namespace trainer::kernels::test {
namespace {

using on_cpu::Order;

std::vector<Way> all_ways() {
  constexpr dim3 kAll = on_cpu::Options{}.most;
  if (on_cpu::watching())  // what is watched is found in any order
    return {{"greedy", {Order::greedy_down, 1, kAll}}, {"at random, one block", {Order::random, 2, {1, 1, 1}}}};
  return {{"forward", {Order::forward, 1, kAll}},
          {"greedy, last warps first", {Order::greedy_down, 1, kAll}},
          {"greedy, first warps first, one block", {Order::greedy_up, 1, {1, 1, 1}}},
          {"reverse", {Order::reverse, 1, kAll}},
          {"at random", {Order::random, 1, kAll}},
          {"at random, 2 x 3 x 2 blocks", {Order::random, 2, {2, 3, 2}}}};
}

std::vector<Way>& list() {
  static std::vector<Way> list = all_ways();
  return list;
}

}  // namespace

const std::vector<Way>& ways() { return list(); }
void go_one_way() { list() = {{"at random", {Order::random, 1, on_cpu::Options{}.most}}}; }

bool same_in_every_way(const std::string& what, const std::vector<Result>& results,
                       const std::function<int()>& launch) {
  std::vector<std::vector<unsigned char>> first;
  for (const Way& way : ways()) {
    for (const Result& result : results) std::fill(result.begin, result.end, Result::kPattern);
    on_cpu::options = way.options;
    try {
      const int error = launch();
      EXPECT_EQ(error, 0) << what << ", " << way.name;
      if (error != 0) return false;
    } catch (const on_cpu::Fault& fault) {
      ADD_FAILURE() << what << ", " << way.name << ": " << fault.what();
      return false;
    }
    if (first.empty())
      for (const Result& result : results) first.emplace_back(result.begin, result.end);
    else
      for (std::size_t i = 0; i < results.size(); ++i)
        EXPECT_TRUE(std::equal(results[i].begin, results[i].end, first[i].begin()))
            << what << ": other bits of result " << i << " when run " << way.name;
  }
  for (std::size_t i = 0; i < results.size(); ++i) std::copy(first[i].begin(), first[i].end(), results[i].begin);
  return true;
}

}  // namespace trainer::kernels::test
