#pragma once

#include "api/e2b/e2b-private.h"

/* Handlers of the routes, by file. */

/* process-rpc.c */
void handle_process_start(struct request *req);
void handle_process_connect(struct request *req);
void handle_process_list(struct request *req);
void handle_process_send_input(struct request *req);
void handle_process_send_signal(struct request *req);
void handle_process_update(struct request *req);
void handle_process_close_stdin(struct request *req);

/* stream-input.c */
void handle_process_stream_input(struct request *req);

/* filesystem-rpc.c */
void handle_fs_stat(struct request *req);
void handle_fs_make_dir(struct request *req);
void handle_fs_move(struct request *req);
void handle_fs_list_dir(struct request *req);
void handle_fs_remove(struct request *req);

/* watch-rpc.c */
void handle_fs_watch_dir(struct request *req);
void handle_fs_create_watcher(struct request *req);
void handle_fs_watcher_events(struct request *req);
void handle_fs_remove_watcher(struct request *req);

/* download.c */
void handle_files_read(struct request *req);

/* content.c */
void handle_files_write(struct request *req);

/* envd.c */
void handle_envd_health(struct request *req);
void handle_envd_metrics(struct request *req);
void handle_envd_envs(struct request *req);

/* control.c */
void handle_e2b_create(struct request *req);
void handle_e2b_connect(struct request *req);
void handle_e2b_resume(struct request *req);
void handle_e2b_get(struct request *req);
void handle_e2b_kill(struct request *req);
void handle_e2b_timeout(struct request *req);
void handle_e2b_refresh(struct request *req);
void handle_e2b_pause(struct request *req);
void handle_e2b_network(struct request *req);

/* list.c */
void handle_e2b_list(struct request *req);
void handle_e2b_list_v1(struct request *req);

/* snapshots.c */
void handle_e2b_snapshot(struct request *req);
void handle_e2b_snapshots(struct request *req);
void handle_e2b_template_delete(struct request *req);
void handle_e2b_fork(struct request *req);

/* template-files.c */
void handle_e2b_template_files(struct request *req);
void handle_e2b_template_put(struct request *req);

/* template-routes.c */
void handle_e2b_template_request(struct request *req);
void handle_e2b_template_build(struct request *req);
void handle_e2b_template_status(struct request *req);
void handle_e2b_template_alias(struct request *req);
void handle_e2b_template_tags(struct request *req);
void handle_e2b_template_patch(struct request *req);
void handle_e2b_templates(struct request *req);
void handle_e2b_tags_assign(struct request *req);
void handle_e2b_tags_remove(struct request *req);
/* 1: all its tags are gone; 0: there was none; or why not. */
int e2b_template_delete(struct api_e2b *e2b, const char *name, struct error *err);

/* port.c */
void handle_port(struct request *req);

/* observe.c */
void handle_e2b_metrics(struct request *req);
void handle_e2b_logs(struct request *req);
void handle_e2b_logs_v2(struct request *req);
