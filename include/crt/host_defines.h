#define __device_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define CUDARTAPI
#define CUDART_CB
#define CUDA_CB
#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
