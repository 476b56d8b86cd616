#include <weights/key_contract.hpp>

#include <base/suggest.hpp>
#include <trainer/sdk/error.hpp>
#include <weights/safetensors_header.hpp>

#include <algorithm>
#include <map>
#include <string_view>

namespace trainer::weights {
namespace {

/// "3 missing: "a", "b", "c"", cut after 20.
class Listing {
 public:
  explicit Listing(std::string title) : title_(std::move(title)) {}
  void add(const std::string& text) {
    constexpr std::size_t kShown = 20;
    if (++count_ <= kShown) text_ += "\n    " + text;
    if (count_ == kShown + 1) text_ += "\n    ...";
  }
  [[nodiscard]] std::string text() const {
    return count_ == 0 ? "" : "\n  " + std::to_string(count_) + " " + title_ + ":" + text_;
  }
  [[nodiscard]] std::size_t count() const { return count_; }
  /// Suggestions cost a comparison with every name: only for the first ones.
  [[nodiscard]] bool suggests() const { return count_ < 5; }

 private:
  std::string title_, text_;
  std::size_t count_ = 0;
};

}  // namespace

void check_key_contract(const std::string& where, std::span<const NamedShape> expected,
                        std::span<const NamedShape> found, const ContractOptions& options) {
  std::map<std::string_view, const NamedShape*> wanted, present;
  std::vector<std::string> free_names;  // found, not expected: what a missing one may have been called
  for (const NamedShape& item : expected) wanted.emplace(item.name, &item);
  for (const NamedShape& item : found) present.emplace(item.name, &item);
  const auto ignored = [&](std::string_view name) {
    return std::any_of(options.ignored_prefixes.begin(), options.ignored_prefixes.end(),
                       [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
  for (const auto& [name, item] : present) {
    if (!wanted.contains(name) && !ignored(name)) free_names.emplace_back(name);
  }

  Listing missing("missing"), unexpected("unexpected"), shapes("of the wrong shape"), dtypes("of the wrong dtype");
  for (const auto& [name, want] : wanted) {
    const auto it = present.find(name);
    if (it == present.end()) {
      missing.add(quote_name(name) + " " + shape_text(want->shape) +
                  (missing.suggests() ? did_you_mean(name, free_names) : ""));
      continue;
    }
    const NamedShape& have = *it->second;
    if (have.shape != want->shape) {
      shapes.add(quote_name(name) + ": the model needs " + shape_text(want->shape) + ", the file has " +
                 shape_text(have.shape));
    }
    if (!want->dtype.empty() && have.dtype != want->dtype) {
      dtypes.add(quote_name(name) + ": the model needs " + want->dtype + ", the file has " + have.dtype);
    }
  }
  for (const std::string& name : free_names) unexpected.add(quote_name(name));
  if (missing.count() + unexpected.count() + shapes.count() + dtypes.count() == 0) return;
  throw Error(ExitCode::bad_input,
              where + ": the tensors do not fit the model" + missing.text() + unexpected.text() + shapes.text() +
                  dtypes.text() + "\n  is this the right file, and the right variant in the recipe?",
              "MODEL_KEYS");
}

}  // namespace trainer::weights
