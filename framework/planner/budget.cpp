#include <planner/budget.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace trainer::planner {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// A sum of choices for the blocks so far that no other beats in both numbers.
struct State {
  int64_t kept = 0, work = 0;
  std::size_t parent = 0, way = 0;
};
/// Kept bytes rise, work falls.
using Front = std::vector<State>;

/// Room that is left for `kept` bytes, without overflow.
bool fits(int64_t fixed, int64_t kept, int64_t peak, int64_t budget) {
  return budget == kUnlimited || fixed + kept + peak <= budget;
}

/// All states after a block that fit, fewest kept bytes first; dominated ones left out.
Front after(const Front& before, const std::vector<Way>& ways, int64_t fixed, int64_t budget) {
  Front all;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const Way& way = ways[w];
    const auto middle = static_cast<std::ptrdiff_t>(all.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      const int64_t kept = before[i].kept;
      // Whatever does not fit with these bytes does not fit with more.
      if (!fits(fixed, kept, std::max({way.forward_peak, way.backward_peak, way.kept}), budget)) break;
      all.push_back({kept + way.kept, before[i].work + way.work, i, w});
    }
    const auto less = [](const State& a, const State& b) {
      return a.kept != b.kept ? a.kept < b.kept : a.work < b.work;
    };
    std::inplace_merge(all.begin(), all.begin() + middle, all.end(), less);
  }
  Front front;
  for (const State& state : all)
    if (front.empty() || state.work < front.back().work) front.push_back(state);
  return front;
}

/// The chain with kept bytes rounded up.
Chain rounded(Chain chain, int64_t quantum) {
  for (auto& ways : chain.blocks)
    for (Way& way : ways) way.kept = (way.kept + quantum - 1) / quantum * quantum;
  return chain;
}

bool stays_small(const Chain& chain, std::size_t limit) {
  Front front{{}};
  for (const auto& ways : chain.blocks) {
    front = after(front, ways, 0, kUnlimited);
    if (front.size() > limit) return false;
  }
  return true;
}

/// The chain as it is searched. It does not depend on the budget: that is what makes larger budgets never slower.
struct Search {
  Chain chain;
  int64_t quantum = 1;
};

Search searched(const Chain& chain, std::size_t limit) {
  Search search{chain};
  while (!stays_small(search.chain, limit)) search.chain = rounded(chain, search.quantum *= 4);
  return search;
}

/// Moves what keeps most to the end among blocks that have the same ways. The sum stays; the bytes there at any moment
/// do not rise when a block that keeps more changes places with a later one that keeps less (exchange argument), except
/// where its own backward needs more room: that is looked at.
void unchecked_last(const Chain& chain, Choices& choices) {
  const std::size_t count = chain.blocks.size();
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = count - 1; j > i; --j) {
      const auto kept = [&](std::size_t k) { return chain.blocks[k][choices.ways[k]].kept; };
      if (kept(i) <= kept(j) || chain.blocks[i] != chain.blocks[j]) continue;
      std::vector<std::size_t> ways = choices.ways;
      std::swap(ways[i], ways[j]);
      if (Choices other = evaluate(chain, std::move(ways)); other.peak <= choices.peak) choices = std::move(other);
    }
}

/// The least bytes that can be there after each block decide alone whether anything fits.
bool feasible(const Chain& chain, int64_t budget) {
  int64_t kept = 0;
  for (const auto& ways : chain.blocks) {
    int64_t least = kUnlimited;
    for (const Way& way : ways)
      if (fits(chain.fixed, kept, std::max({way.forward_peak, way.backward_peak, way.kept}), budget))
        least = std::min(least, way.kept);
    if (least == kUnlimited) return false;
    kept += least;
  }
  return fits(chain.fixed, kept, chain.tail_peak, budget);
}

}  // namespace

Choices evaluate(const Chain& chain, std::vector<std::size_t> ways) {
  Choices choices;
  int64_t peak = 0;
  for (std::size_t i = 0; i < chain.blocks.size(); ++i) {
    const Way& way = chain.blocks[i][ways[i]];
    peak = std::max(peak, choices.kept + std::max({way.forward_peak, way.backward_peak, way.kept}));
    choices.kept += way.kept;
    choices.work += way.work;
  }
  choices.peak = chain.fixed + std::max(peak, choices.kept + chain.tail_peak);
  choices.ways = std::move(ways);
  return choices;
}

std::optional<Choices> cheapest(const Chain& chain, int64_t budget, std::size_t exact_states) {
  const auto [search, quantum] = searched(chain, exact_states);
  std::vector<Front> fronts{{State{}}};
  for (const auto& ways : search.blocks) fronts.push_back(after(fronts.back(), ways, search.fixed, budget));
  const Front& last = fronts.back();
  std::size_t best = last.size();
  while (best > 0 && !fits(search.fixed, last[best - 1].kept, search.tail_peak, budget)) --best;
  if (best == 0) return std::nullopt;
  std::vector<std::size_t> ways(chain.blocks.size());
  for (std::size_t i = ways.size(), state = best - 1; i > 0; --i) {
    ways[i - 1] = fronts[i][state].way;
    state = fronts[i][state].parent;
  }
  Choices choices = evaluate(chain, std::move(ways));
  unchecked_last(chain, choices);
  choices.quantum = quantum;
  return choices;
}

int64_t smallest_budget(const Chain& chain, std::size_t exact_states) {
  const Chain search = searched(chain, exact_states).chain;
  // Between nothing and the plan that keeps least everywhere, whatever it needs meanwhile.
  int64_t low = 0, high = chain.fixed + std::max<int64_t>(chain.tail_peak, 0);
  for (const auto& ways : search.blocks)
    for (const Way& way : ways) high += std::max({way.forward_peak, way.backward_peak, way.kept});
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (feasible(search, middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace trainer::planner
