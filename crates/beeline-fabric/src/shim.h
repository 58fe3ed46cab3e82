/* What crosses the edge to libfabric: shim.c has the rules, ffi.rs the same in Rust. */
#ifndef BEELINE_FABRIC_SHIM_H
#define BEELINE_FABRIC_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <rdma/fabric.h>

#define TEXT_BYTES 128
#define DATA_BYTES 256

struct bf_port {
	struct sockaddr_storage address;
	uint64_t max_msg_size, inject_size, tx_size, rx_size, endpoints_max;
	uint64_t link_speed; /* bits per second, 0: not said */
	uint32_t address_bytes;
	uint32_t link_state; /* 0: not said, 1: down, 2: up */
	uint32_t mr_virt_addr, mr_prov_key, mr_local, send_after_write;
	uint32_t pci_known, pci_domain, pci_bus, pci_device, pci_function;
	uint32_t iwarp;
	char provider[TEXT_BYTES], fabric[TEXT_BYTES], domain[TEXT_BYTES], device[TEXT_BYTES], layer[TEXT_BYTES];
};

enum bf_event_kind { BF_REQUEST = 1, BF_CONNECTED, BF_SHUTDOWN, BF_FAILED, BF_OTHER };

struct bf_event {
	struct fid *fid;
	struct fi_info *info; /* BF_REQUEST: owned by the caller from here on */
	struct sockaddr_storage peer;
	uint32_t peer_bytes, kind;
	int32_t error, provider_error;
	uint32_t data_bytes;
	uint8_t data[DATA_BYTES];
	char text[TEXT_BYTES];
};

struct bf_completion {
	uint64_t context, bytes;
};

struct bf_failure {
	uint64_t context;
	int32_t error, provider_error;
	char text[TEXT_BYTES];
};

enum bf_access { BF_LOCAL_SOURCE = 1, BF_LOCAL_TARGET = 2, BF_REMOTE_READ = 4, BF_REMOTE_WRITE = 8, BF_MESSAGES = 16 };
enum bf_flag { BF_MORE = 1, BF_FENCE = 2, BF_DELIVERED = 4, BF_INJECT = 8 };

/* The prototypes are ffi.rs's mirror: what differs here and there is a bug in one of the two. */
int bf_getinfo(const char *provider, struct fi_info **out);
int bf_set_address(struct fi_info *info, bool target, const void *address, size_t bytes);
struct fi_info *bf_next(const struct fi_info *info);
struct fi_info *bf_dup(const struct fi_info *info);
void bf_free(struct fi_info *info);
void bf_describe(const struct fi_info *info, struct bf_port *port);
void bf_error_text(int error, char *text, size_t bytes);
int bf_close(struct fid *fid);
int bf_fabric(struct fi_info *info, struct fid_fabric **fabric);
int bf_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain);
int bf_eq(struct fid_fabric *fabric, struct fid_eq **eq, int *fd);
int bf_cq(struct fid_domain *domain, size_t entries, struct fid_cq **cq, int *fd);
int bf_trywait(struct fid_fabric *fabric, struct fid_eq *eq, struct fid_cq *cq);
int bf_listen(struct fid_fabric *fabric, struct fi_info *info, struct fid_eq *eq, struct fid_pep **pep,
	      struct sockaddr_storage *address, uint32_t *address_bytes);
int bf_reject(struct fid_pep *pep, struct fi_info *request, const void *data, size_t bytes);
int bf_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_eq *eq, struct fid_cq *cq, size_t tx_size,
		size_t rx_size, struct fid_ep **ep);
size_t bf_data_max(struct fid *fid);
int bf_connect(struct fid_ep *ep, struct fi_info *info, const void *data, size_t bytes);
int bf_accept(struct fid_ep *ep, const void *data, size_t bytes);
int bf_shutdown(struct fid_ep *ep);
int bf_event(struct fid_eq *eq, struct bf_event *event);
int bf_completions(struct fid_cq *cq, struct bf_completion *out, size_t count);
int bf_failure(struct fid_cq *cq, struct bf_failure *failure);
int bf_register(struct fid_domain *domain, void *base, size_t bytes, uint32_t access, uint64_t key,
		struct fid_mr **mr, uint64_t *key_out, void **descriptor);
int bf_recv(struct fid_ep *ep, void *base, size_t bytes, void *descriptor, uint64_t context);
int bf_send(struct fid_ep *ep, const void *base, size_t bytes, void *descriptor, uint64_t context, uint32_t flags);
int bf_write(struct fid_ep *ep, const void *base, size_t bytes, void *descriptor, uint64_t remote, uint64_t key,
	     uint64_t context, uint32_t flags);
int bf_read(struct fid_ep *ep, void *base, size_t bytes, void *descriptor, uint64_t remote, uint64_t key,
	    uint64_t context, uint32_t flags);
size_t bf_size_of_port(void);
size_t bf_size_of_event(void);
size_t bf_size_of_failure(void);

#endif
