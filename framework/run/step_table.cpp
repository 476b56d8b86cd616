#include <execution/mark.hpp>
#include <run/step_table.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace trainer::run {
namespace {

constexpr std::size_t kShownOperators = 12;

/// The recompute engine's node in the autograd graph (sdk/src/recompute.cpp), as the profiler names it.
bool recomputes(const Span& node) {
  return node.name.find("trainer::(anonymous namespace)::Checkpoint") != node.name.npos;
}

/// They touch no data: what they cost is the host's.
bool only_makes_or_views(const std::string& name) {
  static const std::set<std::string> kNames{
      "aten::empty",     "aten::empty_strided",  "aten::empty_like", "aten::as_strided",
      "aten::view",      "aten::_unsafe_view",   "aten::reshape",    "aten::slice",
      "aten::select",    "aten::narrow",         "aten::split",      "aten::chunk",
      "aten::t",         "aten::transpose",      "aten::permute",    "aten::unsqueeze",
      "aten::squeeze",   "aten::expand",         "aten::detach",     "aten::alias",
      "aten::unflatten", "aten::flatten",        "aten::unbind",     "aten::resize_",
      "detach",          "aten::_reshape_alias", "aten::lift_fresh", "aten::split_with_sizes",
      "aten::expand_as"};
  return kNames.contains(name);
}

bool moves(const std::string& name) {
  static const std::set<std::string> kNames{"aten::copy_", "aten::_to_copy", "aten::to", "aten::clone",
                                            "aten::contiguous"};
  return kNames.contains(name);
}

struct Total {
  double seconds = 0;
  double calls = 0;
  void add(double more) { seconds += more, ++calls; }
};
using Operators = std::map<std::pair<std::string, StepPart>, Total>;

/// The spans of one host thread, read from the outside in.
class Reader {
 public:
  explicit Reader(StepTable& table) : table_(table) {}

  void read(const std::vector<Span>& spans) {
    for (const Span& span : spans) {
      close(span.begin);
      open_.push_back({&span, 0});
      if (span.kind == SpanKind::mark && span.name == execution::kMarkStep) ++table_.steps;
    }
    close(INT64_MAX);
  }

  /// Name and part of the ops by their id, for what they launched.
  [[nodiscard]] const std::unordered_map<uint64_t, std::pair<std::string, StepPart>>& launched() const {
    return launched_;
  }
  [[nodiscard]] const Operators& operators() const { return operators_; }

 private:
  struct Open {
    const Span* span;
    int64_t inner;  ///< nanoseconds of what lies directly inside
  };

  /// Ends what is over before `now`.
  void close(int64_t now) {
    while (!open_.empty() && open_.back().span->end <= now) {
      const Open top = open_.back();
      if (in_step()) add(*top.span, static_cast<double>(top.span->end - top.span->begin - top.inner) * 1e-9);
      open_.pop_back();
      if (!open_.empty()) open_.back().inner += top.span->end - top.span->begin;
    }
  }

  void add(const Span& span, double own) {
    if (span.kind == SpanKind::mark && span.name == execution::kMarkStep)
      table_.step_seconds += static_cast<double>(span.end - span.begin) * 1e-9;
    const StepPart part = span.kind == SpanKind::op ? part_of(span) : StepPart::host;
    table_.host_seconds[static_cast<std::size_t>(part)] += own;
    if (span.kind != SpanKind::op) return;
    if (std::none_of(open_.begin(), open_.end() - 1, [](const Open& open) { return open.span->kind == SpanKind::op; }))
      ++table_.calls;
    if (span.name == "aten::_local_scalar_dense") ++table_.reads;
    launched_[span.id] = {span.name, part == StepPart::host ? around() : part};
    operators_[{span.name, part}].add(own);
  }

  [[nodiscard]] bool in_step() const {
    return std::any_of(open_.begin(), open_.end(), [](const Open& open) {
      return open.span->kind == SpanKind::mark && open.span->name == execution::kMarkStep;
    });
  }

  [[nodiscard]] StepPart part_of(const Span& op) const {
    if (only_makes_or_views(op.name)) return StepPart::host;
    const StepPart part = around();
    const bool model = part == StepPart::forward || part == StepPart::recompute || part == StepPart::backward;
    return model && moves(op.name) ? StepPart::copies : part;
  }

  [[nodiscard]] StepPart around() const {
    for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
      const Span& span = *open->span;
      if (span.kind == SpanKind::node) return recomputes(span) ? StepPart::recompute : StepPart::backward;
      if (span.kind != SpanKind::mark) continue;
      if (span.name == execution::kMarkData) return StepPart::data;
      if (span.name == execution::kMarkRanks) return StepPart::ranks;
      if (span.name == execution::kMarkOptimizer) return StepPart::optimizer;
    }
    return StepPart::forward;
  }

  StepTable& table_;
  std::vector<Open> open_;
  std::unordered_map<uint64_t, std::pair<std::string, StepPart>> launched_;
  Operators operators_;
};

/// Adds the work of devices that ops inside of a step launched; returns it by the names of these ops.
Operators add_device(StepTable& table, const std::vector<Span>& work, const Reader& reader) {
  Operators operators;
  int64_t busy_until = 0, busy = 0;
  for (const Span& span : work) {
    const auto launched = reader.launched().find(span.id);
    if (launched == reader.launched().end()) continue;
    const auto& [name, around] = launched->second;
    const StepPart part = span.kind == SpanKind::copy ? StepPart::copies : around;
    const double seconds = static_cast<double>(span.end - span.begin) * 1e-9;
    table.device_seconds[static_cast<std::size_t>(part)] += seconds;
    operators[{name, part}].add(seconds);
    busy += std::max<int64_t>(0, span.end - std::max(span.begin, busy_until));
    busy_until = std::max(busy_until, span.end);
  }
  table.device_busy_seconds = static_cast<double>(busy) * 1e-9;
  return operators;
}

std::string line(const char* name, double seconds, double whole) {
  char text[128];
  std::snprintf(text, sizeof text, "  %-18s %10.2f ms %6.1f %%", name, seconds * 1e3,
                whole > 0 ? 100 * seconds / whole : 0);
  return text;
}

}  // namespace

std::string describe(StepPart part) {
  switch (part) {
    case StepPart::data:
      return "data";
    case StepPart::forward:
      return "forward";
    case StepPart::recompute:
      return "recompute";
    case StepPart::backward:
      return "backward";
    case StepPart::copies:
      return "copies and casts";
    case StepPart::ranks:
      return "other ranks";
    case StepPart::optimizer:
      return "optimizer";
    case StepPart::host:
      return "host";
  }
  return {};
}

StepTable step_table(std::vector<Span> spans) {
  // Of two that begin together the longer one is around the other.
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
  std::vector<Span> host, device;
  const auto step = std::find_if(spans.begin(), spans.end(), [](const Span& span) {
    return span.kind == SpanKind::mark && span.name == execution::kMarkStep;
  });
  if (step == spans.end()) return {};
  const uint64_t thread = step->thread;
  for (Span& span : spans) {
    const bool works = span.kind == SpanKind::kernel || span.kind == SpanKind::copy;
    if (works || span.thread == thread) (works ? device : host).push_back(std::move(span));
  }
  StepTable table;
  Reader reader(table);
  reader.read(host);
  const Operators on_device = add_device(table, device, reader);
  const double each = 1 / static_cast<double>(table.steps);
  table.step_seconds *= each;
  table.device_busy_seconds *= each;
  table.calls *= each;
  table.reads *= each;
  for (double& seconds : table.host_seconds) seconds *= each;
  for (double& seconds : table.device_seconds) seconds *= each;
  for (const auto& [key, total] : table.has_device() ? on_device : reader.operators())
    table.operators.push_back({key.first, key.second, total.seconds * each, total.calls * each});
  std::stable_sort(table.operators.begin(), table.operators.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  if (table.operators.size() > kShownOperators) table.operators.resize(kShownOperators);
  return table;
}

std::string describe(const StepTable& table) {
  char text[160];
  std::snprintf(text, sizeof text, "a step: %.2f ms, the mean of %lld", table.step_seconds * 1e3,
                static_cast<long long>(table.steps));
  std::string lines = text;
  const auto block = [&](const char* title, const std::array<double, kStepParts>& seconds) {
    lines += std::string("\n") + title;
    for (std::size_t i = 0; i < kStepParts; ++i)
      if (seconds[i] > 0)
        lines += "\n" + line(describe(static_cast<StepPart>(i)).c_str(), seconds[i], table.step_seconds);
  };
  if (table.has_device()) {
    block("the device", table.device_seconds);
    lines += "\n" + line("idle", table.step_seconds - table.device_busy_seconds, table.step_seconds);
    block("the host, which launches it", table.host_seconds);
  } else {
    block("its parts", table.host_seconds);
  }
  std::snprintf(text, sizeof text, "\ncalls of operators: %.0f; numbers read from tensors: %.0f", table.calls,
                table.reads);
  lines += text;
  lines += "\nthe longest operators, without what they call";
  for (const StepTable::Row& row : table.operators) {
    std::snprintf(text, sizeof text, "  (%s, %.0f calls)", describe(row.part).c_str(), row.calls);
    lines += "\n" + line(row.name.substr(0, 48).c_str(), row.seconds, table.step_seconds) + text;
  }
  return lines;
}

}  // namespace trainer::run
