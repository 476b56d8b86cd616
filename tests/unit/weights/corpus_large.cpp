// Files over the limits of rules 15 and 18: they take seconds to make and to read, so they stand apart.
#include "corpus.hpp"

namespace trainer::weights::corpus {
namespace {

std::string metadata(const std::string& json) { return file("{\"__metadata__\":" + json + "}"); }

/// Entries "0" to "1000000", one more than a file may hold.
std::string crowd() {
  std::string json;
  json.reserve(70'000'000);
  for (int i = 0; i <= 1'000'000; ++i) {
    json += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  }
  return json;
}

}  // namespace

const std::vector<Case>& large_cases() {
  static const std::vector<Case> cases = [] {
    std::string keys = "{";
    for (int i = 0; i <= 65'536; ++i) keys += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
    const std::string nine(9u << 20, 'v'), tensors = crowd();
    return std::vector<Case>{
        {"too many keys", metadata(keys + "}"), "ST_LIMIT", "more than 65536 keys"},
        {"too many bytes", metadata("{\"k\":\"" + std::string(16u << 20, 'v') + "\"}"), "ST_LIMIT",
         "more than 16777216 bytes"},
        {"too many bytes in two", metadata("{\"k\":\"" + nine + "\",\"l\":\"" + nine + "\"}"), "ST_LIMIT",
         "more than 16777216 bytes"},
        {"a million and one tensors", file("{" + tensors + "}"), "ST_TOO_MANY", "more than 1000000 tensors"},
        {"a million and one in compat", file("{" + tensors + "}"), "ST_TOO_MANY", "more than 1000000", Profile::compat},
        {"a million and one beside metadata", file("{\"__metadata__\":{}," + tensors + "}"), "ST_TOO_MANY",
         "more than 1000000 tensors"},
    };
  }();
  return cases;
}

std::vector<Case> all_cases() {
  std::vector<Case> all = accepted_cases();
  for (const auto* cases : {&framing_cases(), &json_cases(), &tensor_cases(), &large_cases()})
    all.insert(all.end(), cases->begin(), cases->end());
  return all;
}

}  // namespace trainer::weights::corpus
