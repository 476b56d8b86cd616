#include <weights/write.hpp>

#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/convert.hpp>
#include <weights/safetensors_header.hpp>

#include <map>

namespace trainer::weights {
namespace {

TensorSpec describe(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) throw Error(ExitCode::failed, "tensor " + quote_name(name) + " to be written is undefined");
  const auto dtype = file_dtype(tensor.scalar_type());
  if (!dtype || tensor.layout() != at::kStrided || tensor.is_meta()) {
    throw Error(ExitCode::bad_input,
                "tensor " + quote_name(name) + " (" + std::string(at::toString(tensor.scalar_type())) + ", " +
                    tensor.device().str() + ") cannot be stored in a safetensors file",
                "ST_DTYPE_UNSUPPORTED");
  }
  return {name, *dtype, tensor.sizes().vec()};
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<TensorSpec> specs_of(const Named& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back(describe(name, tensor));
  return specs;
}

/// The bytes of `tensors`, in the order of `specs`.
template <typename Piece>
void for_each_in(const std::vector<TensorSpec>& specs, const Named& tensors, const Piece& piece) {
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) by_name.emplace(name, &tensor);
  for (const TensorSpec& spec : specs) {
    const at::Tensor plain = by_name.at(spec.name)->detach().resolve_conj().resolve_neg().cpu().contiguous();
    piece(plain.data_ptr(), plain.nbytes());
  }
}

void append_all(SafetensorsWriter& writer, const Named& tensors) {
  for_each_in(writer.specs(), tensors, [&](const void* data, std::size_t bytes) { writer.append(data, bytes); });
}

}  // namespace

WrittenFile write_safetensors(const std::filesystem::path& file, const Named& tensors, const Metadata& metadata,
                              HashChoice hashes) {
  SafetensorsWriter writer(file, specs_of(tensors), metadata, hashes);
  append_all(writer, tensors);
  return writer.commit();
}

std::unique_ptr<AtomicFile> stage_safetensors(const std::filesystem::path& file, const Named& tensors,
                                              const Metadata& metadata) {
  SafetensorsWriter writer(file, specs_of(tensors), metadata);
  append_all(writer, tensors);
  return writer.take();
}

void stream_safetensors(const Named& tensors, const Metadata& metadata,
                        const std::function<void(const void* data, std::size_t bytes)>& piece) {
  std::vector<TensorSpec> specs = specs_of(tensors);
  sort_for_file(specs);
  const std::string header = make_header(specs, metadata, "a file in memory");
  piece(header.data(), header.size());
  for_each_in(specs, tensors, piece);
}

}  // namespace trainer::weights
