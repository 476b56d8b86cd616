#include "parity.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <trainer/sdk/error.hpp>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

namespace trainer::test {
namespace {

at::ScalarType dtype_named(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16},
      {"I64", at::kLong},   {"I32", at::kInt},   {"U8", at::kByte},  {"BOOL", at::kBool}};
  return kTypes.at(name);
}

double ratio(const at::Tensor& a, const at::Tensor& ref, double (*norm)(const at::Tensor&)) {
  if (!a.defined() || a.sizes() != ref.sizes()) return std::numeric_limits<double>::infinity();
  const at::Tensor exact = ref.to(at::kDouble);
  const double error = norm(a.to(at::kCPU, at::kDouble) - exact) / norm(exact);
  return error == error ? error : std::numeric_limits<double>::infinity();
}

}  // namespace

std::vector<std::filesystem::path> parity_dirs() {
  if (const char* dir = std::getenv("TRAINER_PARITY_DIR"); dir != nullptr && *dir != '\0') return {dir};
  const char* root = std::getenv("TRAINER_SOURCE_ROOT");
  const std::filesystem::path data = std::filesystem::path(root != nullptr ? root : ".") / "tests/data/parity";
  return {data / "tiny-dev", data / "tiny-klein"};
}

std::string word_of(const std::filesystem::path& directory) {
  std::string name = directory.filename().string();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

std::string file_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + file.string());
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

nlohmann::json file_json(const std::filesystem::path& file) { return nlohmann::json::parse(file_text(file)); }

NamedTensors load_tensors(const std::filesystem::path& file) {
  const std::string bytes = file_text(file);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  NamedTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
    at::Tensor tensor = at::empty(shape, at::TensorOptions(dtype_named(entry.at("dtype"))));
    if (tensor.nbytes() != offsets[1] - offsets[0]) throw std::runtime_error("sizes of " + name);
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header_size + offsets[0], tensor.nbytes());
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

double max_error(const at::Tensor& a, const at::Tensor& ref) {
  return ratio(a, ref, [](const at::Tensor& x) { return x.abs().max().item<double>(); });
}

double l2_error(const at::Tensor& a, const at::Tensor& ref) {
  return ratio(a, ref, [](const at::Tensor& x) { return x.norm().item<double>(); });
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

MemorySource::MemorySource(NamedTensors tensors, std::string name)
    : tensors_(std::move(tensors)), name_(std::move(name)) {
  for (const auto& [key, tensor] : tensors_) infos_[key] = {key, tensor.scalar_type(), tensor.sizes().vec()};
}

std::vector<std::string> MemorySource::names() const {
  std::vector<std::string> names;
  for (const auto& [name, info] : infos_) names.push_back(name);
  return names;
}

const TensorInfo* MemorySource::find(std::string_view name) const {
  const auto it = infos_.find(name);
  return it == infos_.end() ? nullptr : &it->second;
}

at::Tensor MemorySource::read(std::string_view name) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw Error(ExitCode::bad_input, name_ + " has no tensor \"" + std::string(name) + "\"");
  return it->second;
}

}  // namespace trainer::test
