/* Written by tools/abi_lock: a hash of the SDK's other headers without comments and layout. A part of the
   fingerprint, so that a plugin built against other headers is refused before it is opened. */
#ifndef TRAINER_SDK_HEADERS_H
#define TRAINER_SDK_HEADERS_H
#define TRAINER_SDK_HEADERS "6d41a99d0cde5c5d"
#endif
