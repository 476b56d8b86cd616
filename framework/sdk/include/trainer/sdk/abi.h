/* The C handshake: all that the host reads of a plugin before it trusts it. Fields are only ever appended.
   The experiments behind each rule: docs/adr/0001-plugin-abi.md. */
#ifndef TRAINER_SDK_ABI_H
#define TRAINER_SDK_ABI_H
#include <stdint.h>

#define TRAINER_API __attribute__((visibility("default")))
#define TRAINER_SDK_VERSION "0.1.0"
#define TRAINER_PLUGIN_MAGIC 0x54524E52u
#define TRAINER_API_MAJOR 0u
#define TRAINER_API_MINOR 1u

typedef struct trainer_plugin_v1 {
  uint32_t magic, struct_size;   /* struct_size: sizeof at the plugin's build */
  uint32_t api_major, api_minor; /* major equal to the host's, minor not newer */
  const char *name, *version;    /* UTF-8, static storage; name as in the manifest */
  const char *fingerprint;       /* TRAINER_SDK_FINGERPRINT as the plugin saw it */
  void (*init)(void *registrar); /* C++ from here on: trainer::Registrar*, valid during the call */
} trainer_plugin_v1;
#endif
