#include <weights/tensor_file.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <base/hash.hpp>
#include <base/heartbeat.hpp>
#include <base/log.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/convert.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace trainer::weights {

TensorFile::TensorFile(const std::filesystem::path& file, ReadOptions options)
    : TensorFile(MappedFile::open(file), options) {}

TensorFile::TensorFile(MappedFile file, ReadOptions options) : file_(std::move(file)), options_(options) {
  load_header();
}

void TensorFile::load_header() {
  const std::string name = path().string();
  std::string bytes(std::min<uint64_t>(file_.size(), 64), '\0');
  file_.read(0, bytes.data(), bytes.size());
  bytes.resize(8 + header_length(bytes, file_.size(), name));
  file_.read(0, bytes.data(), bytes.size());
  header_ = parse_header(bytes, file_.size(), name, options_.profile);
  header_hash_ = xxh128(bytes);
  for (const std::string& warning : header_.warnings) log_warning(warning);
  infos_.reserve(header_.entries.size());
  for (const TensorEntry& entry : header_.entries) {
    infos_.push_back({entry.name, scalar_type(entry.dtype).value_or(at::ScalarType::Undefined), entry.shape});
  }
}

std::vector<std::string> TensorFile::names() const {
  std::vector<std::string> names;
  names.reserve(header_.by_name.size());
  for (const uint32_t index : header_.by_name) names.push_back(header_.entries[index].name);
  return names;
}

const TensorInfo* TensorFile::find(std::string_view name) const {
  const TensorEntry* entry = header_.find(name);
  return entry == nullptr ? nullptr : &infos_[static_cast<std::size_t>(entry - header_.entries.data())];
}

TensorFile::Located TensorFile::locate(std::string_view name) const {
  const TensorEntry* entry = header_.find(name);
  if (entry == nullptr) {
    throw Error(ExitCode::bad_input,
                path().string() + ": there is no tensor " + quote_name(name) + did_you_mean(name, names()),
                "ST_NO_TENSOR");
  }
  const auto type = scalar_type(entry->dtype);
  if (!type) {
    throw Error(ExitCode::bad_input,
                path().string() + ": tensor " + quote_name(name) + " has dtype " +
                    std::string(dtype_name(entry->dtype)) +
                    ", which LibTorch has no type for; use a "
                    "BF16 or F8_E4M3 version of this model",
                "ST_DTYPE_UNSUPPORTED");
  }
  return {*entry, *type};
}

at::Tensor TensorFile::read(std::string_view name) const {
  const Located tensor = locate(name);
  return load(tensor, tensor.entry.shape, tensor.entry.begin, tensor.entry.bytes());
}

at::Tensor TensorFile::read_rows(std::string_view name, int64_t begin, int64_t end) const {
  const Located tensor = locate(name);
  std::vector<int64_t> shape = tensor.entry.shape;
  if (shape.empty() || begin < 0 || end < begin || end > shape[0]) {
    throw Error(ExitCode::bad_input,
                path().string() + ": tensor " + quote_name(name) + " of shape " + shape_text(shape) + " has no rows " +
                    std::to_string(begin) + " to " + std::to_string(end),
                "ST_ROWS");
  }
  const uint64_t row_bytes = shape[0] == 0 ? 0 : tensor.entry.bytes() / static_cast<uint64_t>(shape[0]);
  shape[0] = end - begin;
  return load(tensor, shape, tensor.entry.begin + static_cast<uint64_t>(begin) * row_bytes,
              static_cast<uint64_t>(end - begin) * row_bytes);
}

at::Tensor TensorFile::load(const Located& tensor, const std::vector<int64_t>& shape, uint64_t begin,
                            uint64_t bytes) const {
  beat();
  const auto options = at::TensorOptions().dtype(tensor.type).device(at::kCPU);
  const uint64_t offset = header_.data_offset + begin;
  const bool aligned = offset % at::elementSize(tensor.type) == 0;
  const bool large = options_.mode == ReadMode::map || (options_.mode == ReadMode::automatic && bytes >= kMapFrom);
  if (large && aligned && bytes > 0 && tensor.type != at::kBool) {
    auto region = std::make_shared<MappedRegion>(file_.map(offset, bytes));
    return at::from_blob(
        region->data(), shape, [region](void*) {}, options);
  }
  at::Tensor copy = at::empty(shape, options);
  if (bytes > 0) file_.read(offset, copy.data_ptr(), bytes);
  if (tensor.type == at::kBool) check_bool(copy, tensor.entry.name);
  return copy;
}

void TensorFile::check_bool(const at::Tensor& tensor, const std::string& name) const {
  // As bytes: a bool that is neither 0 nor 1 must not be touched as a bool.
  auto* values = static_cast<unsigned char*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (values[i] <= 1) continue;
    if (options_.profile == Profile::strict) {
      throw Error(ExitCode::bad_input,
                  path().string() + ": tensor " + quote_name(name) + ": element " + std::to_string(i) + " is " +
                      std::to_string(values[i]) +
                      "; a BOOL is 0 or 1; the file is damaged: "
                      "fetch it again",
                  "ST_BOOL");
    }
    values[i] = 1;
  }
}

}  // namespace trainer::weights
