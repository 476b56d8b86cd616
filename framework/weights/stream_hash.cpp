#include <weights/stream_hash.hpp>

#include <openssl/evp.h>
#include <trainer/sdk/error.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trainer::weights {
namespace {

template <std::size_t N>
std::string hex_digits(const unsigned char (&bytes)[N]) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

void require(bool ok) {
  if (!ok) throw Error(ExitCode::failed, "libcrypto cannot compute SHA-256");
}

}  // namespace

struct StreamHash::Impl {
  HashChoice choice;
  XXH3_state_t xxh;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> sha{nullptr, EVP_MD_CTX_free};
};

StreamHash::StreamHash(HashChoice choice) : impl_(std::make_unique<Impl>()) {
  impl_->choice = choice;
  XXH3_128bits_reset(&impl_->xxh);
  if (!choice.sha256) return;
  impl_->sha.reset(EVP_MD_CTX_new());
  require(impl_->sha != nullptr && EVP_DigestInit_ex(impl_->sha.get(), EVP_sha256(), nullptr) == 1);
}

StreamHash::~StreamHash() = default;

void StreamHash::add(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  if (impl_->choice.xxh128) XXH3_128bits_update(&impl_->xxh, data, bytes);
  if (impl_->choice.sha256) require(EVP_DigestUpdate(impl_->sha.get(), data, bytes) == 1);
}

std::string StreamHash::xxh128() const {
  if (!impl_->choice.xxh128) return {};
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&impl_->xxh));
  return hex_digits(canonical.digest);
}

std::string StreamHash::sha256() {
  if (!impl_->choice.sha256) return {};
  unsigned char digest[32];
  require(EVP_DigestFinal_ex(impl_->sha.get(), digest, nullptr) == 1);
  return hex_digits(digest);
}

}  // namespace trainer::weights
