/// @file What the files in tests/data/safetensors hold; they were written by the reference implementation.
#pragma once

#include <string>
#include <vector>
#include <weights/safetensors_writer.hpp>

namespace trainer::weights {

/// A tensor with its bytes.
struct Stored {
  TensorSpec spec;
  std::string bytes;
};
struct ReferenceFile {
  std::string name;
  std::vector<Stored> tensors;
  Metadata metadata;
};

inline std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline std::vector<Stored> every_dtype() {
  std::vector<Stored> tensors;
  const std::pair<const char*, Dtype> types[] = {{"bool", Dtype::boolean},
                                                 {"int8", Dtype::i8},
                                                 {"uint8", Dtype::u8},
                                                 {"int16", Dtype::i16},
                                                 {"uint16", Dtype::u16},
                                                 {"int32", Dtype::i32},
                                                 {"uint32", Dtype::u32},
                                                 {"int64", Dtype::i64},
                                                 {"uint64", Dtype::u64},
                                                 {"float16", Dtype::f16},
                                                 {"float32", Dtype::f32},
                                                 {"float64", Dtype::f64},
                                                 {"bfloat16", Dtype::bf16},
                                                 {"float8_e4m3fn", Dtype::f8_e4m3},
                                                 {"float8_e4m3fnuz", Dtype::f8_e4m3fnuz},
                                                 {"float8_e5m2", Dtype::f8_e5m2},
                                                 {"float8_e5m2fnuz", Dtype::f8_e5m2fnuz},
                                                 {"float8_e8m0fnu", Dtype::f8_e8m0},
                                                 {"complex64", Dtype::c64}};
  int row = 0;
  for (const auto& [name, dtype] : types) {
    std::string bytes;
    for (unsigned i = 0; i < 3 * dtype_bits(dtype) / 8; ++i) {
      bytes += static_cast<char>(dtype == Dtype::boolean ? i % 2 : (static_cast<unsigned>(row) * 16 + i) % 120);
    }
    tensors.push_back({{"t." + std::string(name), dtype, {3}}, bytes});
    ++row;
  }
  return tensors;
}

inline std::vector<Stored> lora_tensors() {
  std::vector<Stored> tensors;
  std::string a, b;
  for (int i = 0; i < 64; ++i) a += static_cast<char>(i), b += static_cast<char>(64 + i);
  for (int i = 0; i < 3; ++i) {
    const std::string module = "transformer.transformer_blocks." + std::to_string(i) + ".attn.to_q.";
    tensors.push_back({{module + "lora_A.weight", Dtype::bf16, {4, 8}}, a});
    tensors.push_back({{module + "lora_B.weight", Dtype::bf16, {8, 4}}, b});
  }
  return tensors;
}

inline std::vector<ReferenceFile> reference_files() {
  const std::vector<Stored> names = {
      {{"z", Dtype::f32, {}}, floats({1.5f})},
      {{"a\"quoted\\name", Dtype::f32, {2}}, floats({1, 2})},
      {{"\xC3\xA9\xF0\x9F\x98\x80", Dtype::f32, {1, 1, 2}}, floats({3, 4})},
      {{"empty", Dtype::f32, {0, 7}}, ""},
      {{"b/c.d", Dtype::f32, {2, 2}}, floats({5, 6, 7, 8})},
      {{"half", Dtype::f16, {1}}, std::string("\x00\x3c", 2)},
  };
  return {{"every_dtype", every_dtype(), {{"format", "pt"}}},
          {"names_and_shapes", names, {{"note", "tab\there, line\nbreak, \xE2\x82\xAC and \"quotes\" \x01"}}},
          {"no_tensors", {}, {}},
          {"lora", lora_tensors(), {{"format", "pt"}}}};
}

}  // namespace trainer::weights
