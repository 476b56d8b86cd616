// An image module of a later version of the interface.
extern "C" int trainer_images_version();
int trainer_images_version() { return 1000; }
