// Bytes as a JSON text: what is not said to nest deeply can be copied, compared and written without using up the stack.
#include <base/json_depth.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "target.hpp"

namespace {

using namespace trainer;
using Json = nlohmann::json;

/// The most brackets open at once, as the parser meets them; 0 for what is no JSON.
class Levels final : public Json::json_sax_t {
 public:
  [[nodiscard]] int most() const { return most_; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool open() {
    most_ = std::max(most_, ++open_);
    return true;
  }
  bool close() {
    --open_;
    return true;
  }
  int open_ = 0, most_ = 0;
};

void parse(std::string_view bytes) {
  Levels levels;
  const bool valid = Json::sax_parse(bytes.begin(), bytes.end(), &levels);
  const bool deep = nests_deeply(bytes);
  fuzz::require(deep || levels.most() <= kMostJsonLevels, "no level that the parser met is overlooked");
  fuzz::require(!deep || !valid || levels.most() > kMostJsonLevels, "no text is called deep that is not");
  if (deep) return;
  const Json json = Json::parse(bytes.begin(), bytes.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return;
  const Json copy = json;
  const std::string text = copy.dump(-1, ' ', false, Json::error_handler_t::replace);
  fuzz::require(copy == json && !text.empty(), "a copy is the same");
}

}  // namespace
TRAINER_FUZZ_TARGET("json_depth", parse);
