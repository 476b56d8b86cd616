#include <weights/safetensors_writer.hpp>

#include <base/heartbeat.hpp>
#include <base/utf8.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/safetensors_header.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace trainer::weights {
namespace {

/// A JSON string as serde_json writes it: UTF-8 as it is, control characters as \n or \u00xx.
std::string json_string(const std::string& text, const std::string& file_name) {
  if (invalid_utf8(text) != std::string_view::npos) {
    throw Error(ExitCode::bad_input, file_name + ": " + quote_name(text) + " is not UTF-8 and cannot be written",
                "ST_UTF8");
  }
  return nlohmann::json(text).dump();
}

bool file_order(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
}

}  // namespace

uint64_t TensorSpec::bytes() const {
  for (const int64_t dim : shape) {
    if (dim < 0) throw Error(ExitCode::failed, "tensor " + quote_name(name) + " has shape " + shape_text(shape));
  }
  const TensorSize size = tensor_size(dtype, shape);
  if (size.code != nullptr) {
    throw Error(ExitCode::bad_input,
                "tensor " + quote_name(name) + ": " + std::string(dtype_name(dtype)) + " " + shape_text(shape) +
                    " cannot be stored",
                size.code);
  }
  return size.bytes;
}

void sort_for_file(std::vector<TensorSpec>& specs) { std::sort(specs.begin(), specs.end(), file_order); }

std::string make_header(const std::vector<TensorSpec>& specs, const Metadata& metadata, const std::string& file_name) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      json += (json.back() == '{' ? "" : ",") + json_string(key, file_name) + ":" + json_string(value, file_name);
    }
    json += "}";
  }
  uint64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    if (json.size() > 1) json += ",";
    json +=
        json_string(spec.name, file_name) + ":{\"dtype\":\"" + std::string(dtype_name(spec.dtype)) + "\",\"shape\":[";
    for (std::size_t i = 0; i < spec.shape.size(); ++i) json += (i == 0 ? "" : ",") + std::to_string(spec.shape[i]);
    const uint64_t end = offset + spec.bytes();
    json += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');

  const uint64_t length = json.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  header += json;
  parse_header(header, header.size() + offset, file_name, Profile::strict);  // never write what nobody may read
  return header;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file, std::vector<TensorSpec> specs,
                                     const Metadata& metadata, HashChoice hashes)
    : specs_(std::move(specs)), output_(std::make_unique<AtomicFile>(file)), hash_(hashes) {
  sort_for_file(specs_);
  const std::string header = make_header(specs_, metadata, file.string());
  expected_ = header.size();
  for (const TensorSpec& spec : specs_) expected_ += spec.bytes();
  output_->reserve(expected_);
  append(header.data(), header.size());
}

void SafetensorsWriter::append(const void* data, std::size_t bytes) {
  if (bytes > expected_ - output_->written()) {
    throw Error(ExitCode::failed, "more data than the header describes was given to a safetensors file");
  }
  beat();
  output_->write(data, bytes);
  hash_.add(data, bytes);
}

void SafetensorsWriter::require_whole() const {
  if (output_->written() == expected_) return;
  throw Error(ExitCode::failed, "a safetensors file was given " + std::to_string(output_->written()) + " of " +
                                    std::to_string(expected_) + " bytes");
}

std::unique_ptr<AtomicFile> SafetensorsWriter::take() {
  require_whole();
  return std::move(output_);
}

WrittenFile SafetensorsWriter::commit() {
  require_whole();
  output_->commit();
  return {expected_, hash_.xxh128(), hash_.sha256()};
}

WrittenFile write_safetensors_bytes(const std::filesystem::path& file, std::vector<TensorBytes> tensors,
                                    const Metadata& metadata, HashChoice hashes) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorBytes& a, const TensorBytes& b) { return file_order(a.spec, b.spec); });
  std::vector<TensorSpec> specs;
  for (const TensorBytes& tensor : tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(file, std::move(specs), metadata, hashes);
  for (const TensorBytes& tensor : tensors) writer.append(tensor.data, tensor.spec.bytes());
  return writer.commit();
}

}  // namespace trainer::weights
