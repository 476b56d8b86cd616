#include <trainer/sdk/error.hpp>
#include <trainer/sdk/key_contract.hpp>
#include <trainer/sdk/names.hpp>

#include <map>

namespace trainer {
namespace {

/// One paragraph of the message: "2 missing:" and a line for each, cut after 20.
class Listing {
 public:
  explicit Listing(std::string title) : title_(std::move(title)) {}
  void add(const std::string& text) {
    if (++count_ <= kShown) text_ += "\n    " + text;
  }
  [[nodiscard]] std::string text() const {
    if (count_ == 0) return "";
    return "\n  " + std::to_string(count_) + " " + title_ + ":" + text_ +
           (count_ > kShown ? "\n    and " + std::to_string(count_ - kShown) + " more" : "");
  }
  /// A tensor's name and shape. A suggestion costs a comparison with every candidate: only for the first ones.
  void add_name(const NamedShape& item, std::span<const std::string> candidates) {
    constexpr std::size_t kSuggestions = 8;
    add(quote_name(item.name) + " " + shape_text(item.shape) +
        (count_ < kSuggestions ? did_you_mean_tensor(item.name, candidates) : ""));
  }

 private:
  static constexpr std::size_t kShown = 20;
  std::string title_, text_;
  std::size_t count_ = 0;
};

/// By name, so that messages do not depend on the order of a file.
std::map<std::string_view, const NamedShape*> by_name(std::span<const NamedShape> items) {
  std::map<std::string_view, const NamedShape*> sorted;
  for (const NamedShape& item : items) sorted.emplace(item.name, &item);
  return sorted;
}

std::string difference(std::string_view name, const std::string& needed, const std::string& held) {
  return quote_name(name) + ": the model needs " + needed + ", the file has " + held;
}

}  // namespace

void check_key_contract(const std::string& where, std::span<const NamedShape> expected,
                        std::span<const NamedShape> found, const ContractOptions& options) {
  const auto wanted = by_name(expected), present = by_name(found);
  std::vector<std::string> absent, left_over;
  for (const auto& [name, item] : wanted)
    if (!present.contains(name)) absent.emplace_back(name);
  for (const auto& [name, item] : present)
    if (!wanted.contains(name) && !(options.ignored && options.ignored(name))) left_over.emplace_back(name);

  Listing missing("missing"), unexpected("unexpected, which the model would leave out"), shapes("of the wrong shape"),
      dtypes("of the wrong dtype");
  for (const std::string& name : absent) missing.add_name(*wanted.at(name), left_over);
  for (const std::string& name : left_over) unexpected.add_name(*present.at(name), absent);
  for (const auto& [name, want] : wanted) {
    const auto it = present.find(name);
    if (it == present.end()) continue;
    const NamedShape& have = *it->second;
    if (have.shape != want->shape) shapes.add(difference(name, shape_text(want->shape), shape_text(have.shape)));
    if (!want->dtype.empty() && have.dtype != want->dtype) dtypes.add(difference(name, want->dtype, have.dtype));
  }
  const std::string problems = missing.text() + unexpected.text() + shapes.text() + dtypes.text();
  if (problems.empty()) return;
  throw Error(ExitCode::bad_input,
              where + ": the tensors do not fit " + options.model + problems + "\n  " + options.advice, "MODEL_KEYS");
}

}  // namespace trainer
