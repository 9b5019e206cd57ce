/* The image that nvrtc.c makes of a kernel, in place of a cubin: an ELF header that jllmc takes for one, this text, and the
 * source as it was given. It stands in the plan, so a plan holds what its kernels are made from. */
#ifndef SIMT_IMAGE_H
#define SIMT_IMAGE_H

enum { SIMT_IMAGE_ELF_BYTES = 64, SIMT_IMAGE_HEAD_BYTES = 39 };
/* hash of the source, bytes of the source */
#define SIMT_IMAGE_HEAD "JLLM-SIMT %016llx %011llu\n"

#endif
