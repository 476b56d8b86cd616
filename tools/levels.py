"""What has a processor compute as one of a lower level: LibTorch's own kernels, oneDNN, MKL and ours."""

LEVELS = {"x86-64-v3": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                        "TRAINER_CPU_LEVEL": "x86-64-v3"}}
